//! Holders of the operator's token.

crate::tests![];
