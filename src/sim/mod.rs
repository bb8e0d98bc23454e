//! A simulator of a vLLM-compatible endpoint.
