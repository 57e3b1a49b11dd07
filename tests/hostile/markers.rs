//! Users who write the metadata of workloads.

crate::tests![];
