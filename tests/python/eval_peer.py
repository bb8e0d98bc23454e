"""Loads runs of rollhouse with the real verifiers, by both of its readers, and prints what it derives of each, as a JSON list."""

import json
import pathlib
import sys

from verifiers.v1.episode import WireEpisode
from verifiers.v1.trace import WireTrace
from verifiers.v1.types import AssistantMessage
from verifiers.v1.utils.trace_store import read_episodes


def mean(values):
    return sum(values) / len(values)


def judged(trace):
    """The exchanges with judges, each of which must be one that the peer could have recorded."""
    calls = trace.info.get("judge_calls", [])
    for call in calls:
        assert set(call["request"]) == {"model", "messages"}, call
        assert set(call["response"]) == {"message", "parsed", "usage"}, call
        AssistantMessage.model_validate(call["response"]["message"])
    return calls


def derived(run):
    strict = [WireEpisode.model_validate_json(line) for line in (run / "traces.jsonl").open()]
    episodes = read_episodes(run, WireTrace)
    assert [episode.id for episode in strict] == [episode.id for episode in episodes]
    traces = [trace for episode in episodes for trace in episode.traces]
    rewards = {}
    metrics = {}
    for trace in traces:
        for name, reward in trace.rewards.items():
            rewards.setdefault(name, []).append(reward.score)
        for name, value in trace.metrics.items():
            metrics.setdefault(name, []).append(value)
    calls = [call for trace in traces for call in judged(trace)]
    extra = [usage for trace in traces for usage in trace.extra_usage]
    return {
        "judge_calls": sum(not call.get("cached", False) for call in calls),
        "judge_cached": sum(call.get("cached", False) for call in calls),
        "judge_input_tokens": sum(usage.prompt_tokens + (usage.cached_input_tokens or 0) for usage in extra),
        "judge_output_tokens": sum(usage.completion_tokens for usage in extra),
        "episodes": len(episodes),
        "ok": sum(episode.ok for episode in episodes),
        "reward": mean([trace.reward for trace in traces]),
        "rewards": {name: mean(values) for name, values in rewards.items()},
        "metrics": {name: mean(values) for name, values in metrics.items()},
        "turns": mean([trace.num_turns for trace in traces]),
        "truncated": sum(trace.is_truncated for trace in traces),
        "input_tokens": sum(trace.num_input_tokens for trace in traces),
        "output_tokens": sum(trace.num_output_tokens for trace in traces),
        "hashes": all(episode.task.key == episode.task.hash for episode in episodes),
        "client": str(traces[0].agent.config.client.type),
    }


print(json.dumps([derived(pathlib.Path(run)) for run in sys.argv[1:]]))
