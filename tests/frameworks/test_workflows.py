"""Locks in the code of workflows."""

import asyncio
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from pynamodb_mutex.aio import AsyncMutex

seen: list[Any] = []


@workflow.defn
class Locks:
    @workflow.run
    async def run(self) -> None:
        mutex = AsyncMutex.for_key("a")
        with pytest.raises(NotImplementedError):
            await mutex.acquire()
        seen.append(mutex.held)


STARTED = [
    {
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED",
        "workflowExecutionStartedEventAttributes": {
            "workflowType": {"name": "Locks"},
            "taskQueue": {"name": "queue"},
            "originalExecutionRunId": "run",
        },
    },
    {
        "eventType": "EVENT_TYPE_WORKFLOW_TASK_SCHEDULED",
        "workflowTaskScheduledEventAttributes": {"taskQueue": {"name": "queue"}},
    },
    {
        "eventType": "EVENT_TYPE_WORKFLOW_TASK_STARTED",
        "workflowTaskStartedEventAttributes": {"scheduledEventId": "2"},
    },
]
"""The history of a workflow that begins, which Temporal's own worker replays without a server."""


@pytest.mark.timeout(60)
def test_loop_of_temporal_refuses_a_lock_before_anything_is_sent(table):
    events = [
        {"eventId": str(number), "eventTime": "2026-01-01T00:00:00Z", **event}
        for number, event in enumerate(STARTED, 1)
    ]

    async def main():
        replayer = Replayer(workflows=[Locks], workflow_runner=UnsandboxedWorkflowRunner())
        history = WorkflowHistory.from_json("id", {"events": events})
        await replayer.replay_workflow(history, raise_on_replay_failure=False)

    asyncio.run(main())
    assert seen == [False]
    assert not list(table.held())
    assert not list(table.scan())
