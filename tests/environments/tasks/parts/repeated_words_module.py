"""An environment in the form of verifiers 0.4: a user speaks so many times, and wants to hear it again."""

NAME = "repeated_words"
MODULE = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    said: list[str]


class Again(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def again(self, trace: vf.Trace) -> float:
        replies = [message.content for message in trace.assistant_messages]
        return sum(reply == said for reply, said in zip(replies, self.data.said)) / len(self.data.said)


class Config(vf.TasksetConfig):
    turns: int = 1


class Env(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for said in task.data.said:
                if (await interaction.turn(said)).terminated:
                    break


class Repeated(vf.Taskset[Again, Config]):
    def load(self):
        for word in ("one", "two"):
            said = [f"{word} {turn}" for turn in range(self.config.turns)]
            yield Again(Data(prompt=None, name=word, said=said), self.config.task)


__all__ = ["Env", "Repeated"]
"""
