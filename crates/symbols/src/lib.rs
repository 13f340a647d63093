//! ELF files, functions, patterns and probe sites.
