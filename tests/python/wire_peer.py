"""Assembles episodes from deltas with the real verifiers.

Reads cases.msgpack in the folder given, a list of {frames, head, traces}, and writes in theirs/ the lines of the episodes
and in tensors.json what the lines leave out of their nodes.
"""

import json
import pathlib
import sys

import msgpack
from verifiers.v1.episode import WireEpisode
from verifiers.v1.serve.delta import EpisodeAssembly, TraceSummary, unpack
from verifiers.v1.utils.trace_store import write_episode


def tensors(node):
    rows, mask = node.routed_experts, node.sampling_mask
    if mask is not None:
        mask = {"ids": mask.ids.tolist(), "counts": mask.counts.tolist()}
    return [None if rows is None else rows.tolist(), mask]


folder = pathlib.Path(sys.argv[1])
theirs = folder / "theirs"
theirs.mkdir()
left_out = []
for case in msgpack.unpackb((folder / "cases.msgpack").read_bytes()):
    assembly = EpisodeAssembly()
    for frame in case["frames"]:
        assembly.apply(unpack(frame))
    summaries = [TraceSummary(**summary) for summary in case["traces"]]
    episode = WireEpisode.model_validate(assembly.finish(unpack(case["head"]), summaries))
    left_out.append([[tensors(node) for node in trace.nodes] for trace in episode.traces])
    for trace in episode.traces:
        for node in trace.nodes:
            node.routed_experts = node.sampling_mask = None
    write_episode(theirs, episode)
(folder / "tensors.json").write_text(json.dumps(left_out))
