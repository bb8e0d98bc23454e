//! The shipped tasksets.
