"""Answers from an engine that has the version loaded, without any service around it."""

from collections.abc import Sequence

from core.errors import EngineUnavailable, InvalidRequest
from core.events import Sampling
from core.ids import UNKNOWN, PolicyRef, new_inference_id, new_session_id
from core.ports import GenerateRequest, Policy, Renderer, TokenChunk
from serving.evals.cases import CannotRun, Case


class Lost(CannotRun):
    """The engine went, or turned to another version, before the answer was whole: asked again, it may come."""


class EngineAnswers:
    """The answers of one version."""

    def __init__(self, policy: Policy, renderer: Renderer, version: PolicyRef) -> None:
        self._policy, self._renderer, self._version = policy, renderer, version

    async def __call__(self, case: Case) -> str:
        """Ask once. Raises CannotRun, and Lost when asking again may help."""
        try:
            request = self._request(case)
            parser, text, chunks = self._renderer.parser(tools=(), after=request.prompt_token_ids), "", []
            async for chunk in self._policy.generate(request):
                text += parser.feed(chunk.token_ids).content
                chunks.append(chunk)
            self._check(chunks)
            return text + parser.finish().content
        except EngineUnavailable as error:
            raise Lost(str(error)) from error
        except InvalidRequest as error:
            raise CannotRun(str(error)) from error

    def _check(self, chunks: Sequence[TokenChunk]) -> None:
        """Check that the whole answer is this version's.

        An engine of one version that switches in the middle of an answer continues under the new one."""
        last = chunks[-1]
        if last.finish_reason == "abort":
            raise Lost(f"version {self._version} was broken off amid an answer")
        if last.version_spans is not None:
            spoke = {span.version for span in last.version_spans}
        else:
            spoke = {chunk.version if chunk.confirmed else UNKNOWN for chunk in chunks if chunk.token_ids}
        if spoke - {self._version}:
            raise Lost(f"an answer is not all version {self._version}'s: its engine was given another")

    def _request(self, case: Case) -> GenerateRequest:
        prompt = self._renderer.render(case.request(), ())
        room = self._policy.context_length - len(prompt)
        if room < 1:
            raise CannotRun(
                f"its {len(prompt)} tokens leave no room for an answer within {self._policy.context_length}"
            )
        sampling = Sampling(temperature=case.temperature, max_tokens=min(case.most_tokens, room), seed=case.seed)
        return GenerateRequest(
            inference_id=new_inference_id(new_session_id()),
            prompt_token_ids=prompt,
            sampling=sampling,
            stop_token_ids=self._renderer.stop_token_ids,
            version=self._version,
            streamed=False,
            is_case=True,
        )
