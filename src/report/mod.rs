//! What a person sees: progress, summaries and explanations. Reads events and runs, knows neither eval nor orchestrator.
