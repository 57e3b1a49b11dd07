//! Policies of one tenant beside those of others.

crate::tests![];
