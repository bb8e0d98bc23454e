//! One rollout: setup, harness, finalize, score; limits, deadlines, retries and the outcome.
