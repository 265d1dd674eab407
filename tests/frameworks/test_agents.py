"""The lines of the guide on agents, in the frameworks that it names."""

import asyncio
import json
import re
import textwrap
from pathlib import Path

import pytest

from pynamodb_mutex import LockItem

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "agent_tool.rst"
DONE = "refunded 20 of order 7"
REFUSED = "this order was refunded before, with another amount: do not repeat"
ONE_REFUND = [(7, 20), (7, 20)]
"""What is sent: by the page's own calls, and by the tool."""

CALLS = [{"order": 7, "amount": 20}, {"order": 7, "amount": 20}, {"order": 7, "amount": 25}]
"""What the model asks for: a refund, the same once more, and another amount. Each time by a call with an id of its own."""


@pytest.fixture
def lines_for(engine):
    """Runs the lines of the page that import a framework, below the page's own; returns what they define."""

    def run(framework):
        code = re.findall(
            r"\.\. code-block:: (?:python|py)\n\n((?: {3}.*\n|\n)+)", PAGE.read_text()
        )
        theirs = next(each for each in code if f"from {framework}" in each)
        names = {}
        for each in (code[0], theirs):
            exec(textwrap.dedent(each), names)
        return names

    yield run
    LockItem.delete_table()


def test_tool_of_fastmcp(lines_for):
    from fastmcp import Client

    names = lines_for("fastmcp")

    async def main():
        answers = []
        for arguments in CALLS:
            async with Client(names["server"]) as client:  # connected again for each call
                meta = {"conversation": "mcp"}
                answer = await client.call_tool("refund_order", arguments, meta=meta)
                answers.append(answer.data)
        return answers

    assert asyncio.run(main()) == [DONE, DONE, REFUSED]
    assert names["outbox"] == ONE_REFUND


def test_tool_of_strands(lines_for, tmp_path):
    from strands import Agent
    from strands.models import Model
    from strands.session.file_session_manager import FileSessionManager

    names = lines_for("strands")

    class Scripted(Model):
        """Asks for one call of the tool, and ends when it has the result."""

        def __init__(self, number):
            self.number = number

        def update_config(self, **_):
            pass

        def get_config(self):
            return {}

        def structured_output(self, *_, **__):
            raise NotImplementedError

        async def stream(self, messages, *_, **__):
            yield {"messageStart": {"role": "assistant"}}
            if any("toolResult" in each for each in messages[-1]["content"]):
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            else:
                use = {"toolUseId": f"call-{self.number}", "name": "refund_order"}
                text = json.dumps(CALLS[self.number])
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": text}}}}
            yield {"contentBlockStop": {}}
            is_done = any("toolResult" in each for each in messages[-1]["content"])
            yield {"messageStop": {"stopReason": "end_turn" if is_done else "tool_use"}}

    answers = []
    for number in range(len(CALLS)):
        manager = FileSessionManager(session_id="strands", storage_dir=str(tmp_path))
        agent = Agent(
            model=Scripted(number),
            tools=[names["refund_order"]],
            session_manager=manager,
            callback_handler=None,
        )
        agent("refund my order")
        results = [
            part
            for message in agent.messages
            for part in message["content"]
            if "toolResult" in part
        ]
        answers.append(results[-1]["toolResult"]["content"][0]["text"])
    assert answers == [DONE, DONE, REFUSED]
    assert names["outbox"] == ONE_REFUND


def test_tool_of_langgraph(lines_for):
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    names = lines_for("langchain_core")
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([names["refund_order"]]))
    graph.add_edge(START, "tools")
    graph = graph.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "langgraph"}}
    answers = []
    for number, arguments in enumerate(CALLS):
        call = {"name": "refund_order", "args": arguments, "id": f"call-{number}"}
        state = graph.invoke({"messages": [AIMessage("", tool_calls=[call])]}, thread)
        answers.append(state["messages"][-1].content)
    assert answers == [DONE, DONE, REFUSED]
    assert names["outbox"] == ONE_REFUND
