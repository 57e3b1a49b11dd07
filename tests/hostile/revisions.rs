//! Stored revisions, times and numbers that others have written.

crate::tests![];
