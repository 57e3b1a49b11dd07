//! Users who may write policies for one namespace.

crate::tests![];
