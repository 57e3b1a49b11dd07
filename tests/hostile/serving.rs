//! Clients without credentials that hold or flood the operator's ports.

crate::tests![];
