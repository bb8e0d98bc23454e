"""The peer's side of the comparison: one single-turn taskset for verifiers, and a harness that calls the model in
process, which is the cheapest thing its interface allows (its own `null` harness starts an interpreter per segment)."""

import httpx

import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["InProcessHarness", "InProcessHarnessConfig", "VersusTaskset", "VersusTasksetConfig"]

TEXT = "a short line of text number {number} that is long enough to be worth turning around"


class VersusData(vf.TaskData):
    answer: str


class VersusTask(vf.Task[VersusData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def exact(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class VersusTasksetConfig(vf.TasksetConfig):
    pass


class VersusTaskset(vf.Taskset[VersusTask, VersusTasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            text = TEXT.format(number=number)
            prompt = f"Turn the following text around, character by character:\n\n{text}"
            yield VersusTask(VersusData(prompt=prompt, answer=text[::-1]), self.config.task)
            number += 1


class InProcessHarnessConfig(vf.HarnessConfig):
    pass


class InProcessHarness(vf.Harness[InProcessHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    client = None

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        if InProcessHarness.client is None:
            InProcessHarness.client = httpx.AsyncClient(timeout=None)
        body = {"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]}
        headers = {"Authorization": f"Bearer {secret}"}
        response = await InProcessHarness.client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        return ProgramResult(exit_code=0, stdout="", stderr="")
