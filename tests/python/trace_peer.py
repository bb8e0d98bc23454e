"""Answers questions about traces with the real verifiers: loads episode lines, replays turns, computes hashes.

Reads traces.jsonl, turns.json and hashes.json in the folder given and writes derived.json, nodes.json, hashed.json and,
in theirs/, the lines as verifiers writes them after loading.
"""

import base64
import json
import pathlib
import sys

import numpy as np
from pydantic import TypeAdapter
from pydantic_core import from_json
from verifiers.v1.episode import WireEpisode
from verifiers.v1.graph import _tools_hash, message_hash, prepare_turn
from verifiers.v1.task import Task, WireTaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask, WireTrace
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.types import AssistantMessage, Message, Response, SamplingMask, Tool, TurnTokens
from verifiers.v1.utils.trace_store import read_episodes, write_episode

messages = TypeAdapter(list[Message])
tools = TypeAdapter(list[Tool])


def counts(part):
    return [part.num_input_tokens, part.num_output_tokens, part.num_total_tokens]


def derived(episode):
    return {
        "id": episode.id,
        "counts": counts(episode),
        "hash": Task(episode.task.data).hash,
        "traces": [
            {
                "reward": trace.reward,
                "counts": counts(trace),
                "turns": trace.num_turns,
                "truncated": trace.is_truncated,
                "last_reply": trace.last_reply,
                "usage": None if trace.usage is None else trace.usage.model_dump(exclude_none=True),
                "messages": [message_hash(node.message) for node in trace.nodes],
                "branches": [
                    {
                        "trainable": branch.trainable,
                        "counts": counts(branch),
                        "token_ids": branch.token_ids,
                        "mask": branch.sampled_mask,
                        "logprobs": branch.logprobs,
                        "advantages": branch.advantages,
                        "loss_weights": branch.loss_weights("policy"),
                    }
                    for branch in trace.branches
                ],
            }
            for trace in episode.traces
        ],
    }


def routed(payload):
    rows = np.array(payload["rows"], dtype=np.uint8)
    data = base64.b64encode(rows.tobytes())
    return {"data": data, "shape": list(rows.shape), "start": payload["start"], "dtype": "uint8"}


def turn_tokens(record):
    if record is None:
        return None
    record = dict(record)
    if record.get("routed_experts"):
        record["routed_experts"] = routed(record["routed_experts"])
    if record.get("sampling_mask") is not None:
        record["sampling_mask"] = SamplingMask.from_sampling_mask(record["sampling_mask"])
    return TurnTokens.model_construct(**{**TurnTokens().__dict__, **record})


def replay(case):
    data = WireTaskData()
    trace = WireTrace(
        task=TraceTask[WireTaskData](type="Task", data=data), agent=AgentInfo[WireAgentConfig](config=WireAgentConfig())
    )
    turns, found = {}, []
    for op in case["ops"]:
        if op["op"] == "prepare":
            turn = prepare_turn(trace, messages.validate_python(op["prompt"]), tools.validate_python(op["tools"]))
            turns[op["id"]] = turn
            found.append(turn.prefix_node_ids)
        else:
            response = Response(
                id="r",
                created=0,
                model="m",
                message=AssistantMessage.model_validate(op["response"]),
                finish_reason="stop",
                tokens=turn_tokens(op["tokens"]),
            )
            turns.pop(op["id"]).commit(response)
    nodes = [
        {
            "parent": node.parent,
            "sampled": node.sampled,
            "message": node.message.model_dump(exclude_none=True),
            "tools": [tool.model_dump(exclude_none=True) for tool in node.tools],
            "semantic_parents": [],
            "token_ids": node.token_ids,
            "mask": node.mask,
            "is_content": node.is_content,
            "logprobs": node.logprobs,
            "routed_experts": None if node.routed_experts is None else node.routed_experts.tolist(),
            "sampling_mask": None
            if node.sampling_mask is None
            else {"ids": node.sampling_mask.ids.tolist(), "counts": node.sampling_mask.counts.tolist()},
        }
        for node in trace.nodes
    ]
    return {"prefixes": found, "nodes": nodes, "tools": [tool.model_dump(exclude_none=True) for tool in trace.tools]}


def main():
    folder = pathlib.Path(sys.argv[1])
    # Two readers: the one of replays and the one of resumed runs.
    episodes = read_episodes(folder, WireTrace)
    resumed = [WireEpisode.model_validate(from_json(line)) for line in (folder / "traces.jsonl").open("rb")]
    assert [derived(one) for one in episodes] == [derived(one) for one in resumed]
    (folder / "derived.json").write_text(json.dumps([derived(episode) for episode in episodes]))
    (folder / "theirs").mkdir()
    for episode in resumed:
        write_episode(folder / "theirs", episode)

    cases = json.loads((folder / "turns.json").read_text())
    (folder / "nodes.json").write_text(json.dumps([replay(case) for case in cases]))

    asked = json.loads((folder / "hashes.json").read_text())
    hashed = {
        "messages": [message_hash(message) for message in messages.validate_python(asked["messages"])],
        "tools": [_tools_hash(tools.validate_python(one)) for one in asked["tools"]],
        "rows": [Task(WireTaskData.model_validate_json(row)).hash for row in asked["rows"]],
    }
    (folder / "hashed.json").write_text(json.dumps(hashed))


main()
