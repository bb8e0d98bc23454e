"""Renders, parses and extends conversations with the package `renderers`, or renders them with a model's chat template.

    render_peer.py FOLDER [--model ID] [--renderer JSON] [--add TOKENS]

FOLDER holds `tokenizer.json` and `tokenizer_config.json`. With `--renderer`, JSON of a renderer's configuration; without it
the chat template. `--add`, a JSON list, adds control tokens that the vocabulary lacks. Reads one case a line and writes one
result a line, in the same order.
"""

import argparse
import json
import sys

from transformers import AutoTokenizer


def rendered(out, start=0):
    return {
        "ids": out.token_ids[start:],
        "messages": out.message_indices[start:],
        "sampled": out.sampled_mask[start:],
        "content": out.is_content[start:],
    }


def parsed(out):
    return {
        "content": out.content,
        "reasoning": out.reasoning_content,
        "complete": out.reasoning_complete,
        "calls": [
            {
                "raw": call.raw,
                "name": call.name,
                "arguments": call.arguments,
                "span": call.token_span,
                "status": str(call.status),
                "id": call.id,
            }
            for call in out.tool_calls
        ],
    }


def attempt(work):
    try:
        return work()
    except Exception as error:  # The case is compared by what it comes to, failures too.
        return {"error": f"{type(error).__name__}: {error}"}


def by_renderer(renderer, case):
    tools = case["tools"] or None
    out = {}
    out["render"] = attempt(
        lambda: rendered(renderer.render(case["messages"], tools=tools, add_generation_prompt=case["generate"]))
    )
    if "completion" in case:
        prompt, completion = case["prompt"], case["completion"]
        out["parse"] = attempt(
            lambda: parsed(renderer.parse_response(completion, tools=tools, prompt_ids=prompt))
        )
        whole = prompt + completion

        def bridge():
            out = renderer.bridge_to_next_turn(prompt, completion, case["new"], tools=tools)
            if out is None:
                return None
            if out.token_ids[: len(whole)] != whole:
                return {"dropped": True}
            return rendered(out, len(whole))

        out["bridge"] = attempt(bridge)
    return out


def as_engines_do(message):
    """Engines read the arguments of calls before they render them."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    message = json.loads(json.dumps(message))
    for call in message["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


def by_template(tokenizer, case):
    messages = [as_engines_do(message) for message in case["messages"]]
    kwargs = {"tools": case["tools"] or None, "add_generation_prompt": case["generate"], "tokenize": True}
    return {
        "render": attempt(
            lambda: {"ids": list(tokenizer.apply_chat_template(messages, return_dict=False, **kwargs))}
        )
    }


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("--model", default="")
    options.add_argument("--renderer")
    options.add_argument("--add", default="[]")
    options = options.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    tokenizer.add_special_tokens({"additional_special_tokens": []})
    for token in json.loads(options.add):
        tokenizer.add_tokens([token], special_tokens=True)
    if options.model:
        tokenizer.name_or_path = options.model
    answer = by_template
    subject = tokenizer
    if options.renderer:
        from pydantic import TypeAdapter
        from renderers import RendererConfig, create_renderer

        config = TypeAdapter(RendererConfig).validate_python(json.loads(options.renderer))
        subject = create_renderer(tokenizer, config)
        answer = by_renderer
        print(json.dumps({"stops": subject.get_stop_token_ids(), "stable": subject.is_prefix_stable}), flush=True)
    else:
        print(json.dumps({}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(subject, json.loads(line))), flush=True)


main()
