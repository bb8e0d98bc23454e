//! Evaluations: the plan (fresh or resumed), the runner and the summary.
