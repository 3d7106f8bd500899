"""Answers from an engine that has the version loaded, without any service around it."""

from core.errors import EngineUnavailable, InvalidRequest
from core.events import Sampling
from core.ids import Version, new_inference_id, new_session_id
from core.ports import GenerateRequest, Policy, Renderer
from serving.evals.cases import CannotRun, Case


class Spoken:
    """What one version says."""

    def __init__(self, policy: Policy, renderer: Renderer, version: Version) -> None:
        self._policy, self._renderer, self._version = policy, renderer, version

    async def __call__(self, case: Case) -> str:
        """Once. Raises CannotRun."""
        try:
            request = self._request(case)
            parser, text = self._renderer.parser(tools=False), ""
            async for chunk in self._policy.generate(request):
                text += parser.feed(chunk.token_ids).content
            return text + parser.finish().content
        except (EngineUnavailable, InvalidRequest) as error:
            raise CannotRun(str(error)) from error

    def _request(self, case: Case) -> GenerateRequest:
        prompt = self._renderer.render(case.request(), ())
        room = self._policy.context_length - len(prompt)
        if room < 1:
            raise CannotRun(
                f"its {len(prompt)} tokens leave no room for an answer within {self._policy.context_length}"
            )
        sampling = Sampling(temperature=case.temperature, max_tokens=min(case.max_tokens, room), seed=case.seed)
        return GenerateRequest(
            inference_id=new_inference_id(new_session_id()),
            prompt_token_ids=prompt,
            sampling=sampling,
            stop_token_ids=self._renderer.stop_token_ids,
            version=self._version,
        )
