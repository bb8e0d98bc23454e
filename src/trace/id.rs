//! Names of episodes and traces.

/// 32 hex digits of a random UUID, as verifiers names episodes and traces.
pub(super) fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
