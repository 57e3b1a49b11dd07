//! Callers without credentials that post reviews to the webhook.

crate::tests![];
