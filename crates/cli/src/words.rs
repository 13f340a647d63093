//! Splits the command of `-c` into words by the quoting rules of a shell, without a shell: nothing is expanded, and
//! characters that would be operators there (`|`, `>`, `;`, `#`) are ordinary.

/// Why a command can't be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsplit {
    /// No word at all.
    Empty,
    /// This quote, at this byte, has no partner.
    Open(char, usize),
    /// Nothing follows the last backslash.
    Backslash,
}

impl std::error::Error for Unsplit {}

impl std::fmt::Display for Unsplit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("the command of -c is empty; give a program and its arguments")
            }
            Self::Open(quote, at) => write!(
                f,
                "the command of -c opens {quote} at byte {at} and never closes it"
            ),
            Self::Backslash => f.write_str(
                "the command of -c ends in a backslash; put the character that it quotes behind it",
            ),
        }
    }
}

/// The words of a command. Between single quotes everything is literal; between double quotes a backslash quotes only
/// `"`, `\`, `$`, `` ` `` and removes a newline; elsewhere it quotes any character and removes a newline.
pub(crate) fn split(command: &str) -> Result<Vec<String>, Unsplit> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = command.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some((_, '\'')) => break,
                        Some((_, c)) => word.push(c),
                        None => return Err(Unsplit::Open('\'', at)),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                let open = Unsplit::Open('"', at);
                loop {
                    match chars.next().ok_or(open)?.1 {
                        '"' => break,
                        '\\' => match chars.next().ok_or(open)?.1 {
                            '\n' => {}
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => match chars.next().ok_or(Unsplit::Backslash)?.1 {
                '\n' => {}
                c => word.get_or_insert_default().push(c),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if words.is_empty() {
        Err(Unsplit::Empty)
    } else {
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_quotes() {
        let cases: [(&str, &[&str]); 7] = [
            ("  a\tb\nc  ", &["a", "b", "c"]),
            (r#"sh -c 'echo "$x" \n'"#, &["sh", "-c", r#"echo "$x" \n"#]),
            (
                r#"a "b \"c\" \x \$" '' """#,
                &["a", r#"b "c" \x $"#, "", ""],
            ),
            (r"a\ b \'", &["a b", "'"]),
            ("a'b'\"c\"d", &["abcd"]),
            ("a\\\nb \"c\\\nd\"", &["ab", "cd"]),
            ("a | b > c # d;", &["a", "|", "b", ">", "c", "#", "d;"]),
        ];
        for (command, words) in cases {
            assert_eq!(split(command).unwrap(), words, "{command}");
        }
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        assert_eq!(split("a 'b"), Err(Unsplit::Open('\'', 2)));
        assert_eq!(split("a \"b'"), Err(Unsplit::Open('"', 2)));
        assert_eq!(split("\"\\"), Err(Unsplit::Open('"', 0)));
        assert_eq!(split("a \\"), Err(Unsplit::Backslash));
        assert_eq!(split(" \t"), Err(Unsplit::Empty));
    }
}
