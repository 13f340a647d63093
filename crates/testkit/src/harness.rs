//! For test programs that cannot run under the usual harness, since they are started again as
//! something else or must not have threads: what the runners of tests ask of a `main`.

/// Which of these tests are wanted, by the program's arguments. When only their names are, they are
/// listed, and none is.
#[must_use]
pub fn wanted<'n>(names: &[&'n str], args: &[String]) -> Vec<&'n str> {
    let given = |flag: &str| args.iter().any(|arg| arg == flag);
    // None is ever ignored.
    if given("--ignored") {
        return Vec::new();
    }
    if given("--list") {
        for name in names {
            println!("{name}: test");
        }
        return Vec::new();
    }
    let filter = args.iter().find(|arg| !arg.starts_with('-'));
    let is_wanted = |name: &&&str| match filter {
        None => true,
        Some(wanted) if given("--exact") => **name == wanted,
        Some(part) => name.contains(part.as_str()),
    };
    names.iter().filter(is_wanted).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::wanted;

    fn of(args: &[&str]) -> Vec<&'static str> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        wanted(&["one", "one_more"], &args)
    }

    #[test]
    fn all_or_those_that_are_named() {
        assert_eq!(of(&[]), ["one", "one_more"]);
        assert_eq!(of(&["one", "--nocapture"]), ["one", "one_more"]);
        assert_eq!(of(&["one", "--nocapture", "--exact"]), ["one"]);
        assert_eq!(of(&["two"]), [""; 0]);
    }

    #[test]
    fn a_list_runs_nothing() {
        assert_eq!(of(&["--list", "--format", "terse"]), [""; 0]);
        assert_eq!(of(&["--list", "--format", "terse", "--ignored"]), [""; 0]);
    }
}
