//! What can be wrong with what was asked for.

/// Why a list can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PsError {
    /// An option that is not known.
    #[error("unknown option {option:?}; `lancet ps --help` lists them")]
    Option {
        /// As it was written.
        option: String,
    },
    /// An option without what must follow it.
    #[error("option {option} must be followed by {what}")]
    Missing {
        /// The option.
        option: String,
        /// What is missing.
        what: &'static str,
    },
    /// Something that a list of an option can't hold.
    #[error("{text:?} is not {what}")]
    Value {
        /// As it was written.
        text: String,
        /// What it should be.
        what: &'static str,
    },
    /// A column that is not known.
    #[error("unknown column {name:?}; `lancet ps --help columns` lists them")]
    Column {
        /// As it was written.
        name: String,
    },
    /// Two wishes that exclude each other.
    #[error("{one} and {other} can't be used together")]
    Conflict {
        /// One of them.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// A regular expression that is none.
    #[error("--match {pattern:?}: {message}")]
    Pattern {
        /// As it was written.
        pattern: String,
        /// What the C library says.
        message: String,
    },
}
