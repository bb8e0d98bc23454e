"""A harness that calls the model in the server's own process: it starts no program."""

import json

import httpx

import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult


class QuickHarnessConfig(vf.HarnessConfig):
    max_rounds: int = 8
    """Most model calls of a segment that calls tools."""


class QuickHarness(vf.Harness[QuickHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        if isinstance(data.prompt, str):
            messages.append({"role": "user", "content": data.prompt})
        for message in data.prompt if isinstance(data.prompt, list) else []:
            messages.append(message.model_dump(mode="json", exclude_none=True))
        if not mcp_urls:
            await ask(ctx, endpoint, secret, messages, [])
            return done()
        from mcp import Client  # takes long to import

        (url,) = mcp_urls.values()
        async with Client(url) as server:
            tools = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
                }
                for tool in (await server.list_tools()).tools
            ]
            for _ in range(self.config.max_rounds):
                reply = await ask(ctx, endpoint, secret, messages, tools)
                messages.append(reply)
                calls = reply.get("tool_calls") or []
                for call in calls:
                    function = call["function"]
                    result = await server.call_tool(function["name"], json.loads(function["arguments"]))
                    text = "".join(part.text for part in result.content)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
                if not calls:
                    break
        return done()


async def ask(ctx, endpoint, secret, messages, tools):
    body = {"model": ctx.model, "messages": messages}
    if tools:
        body["tools"] = tools
    async with httpx.AsyncClient(timeout=None) as client:
        headers = {"Authorization": f"Bearer {secret}"}
        response = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
    response.raise_for_status()
    return response.json()["choices"][0]["message"]


def done():
    return ProgramResult(exit_code=0, stdout="", stderr="")
