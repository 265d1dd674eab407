"""Templates of infrastructure, read as far as the command line prints them."""

import json
import re
from types import SimpleNamespace
from typing import Any


def read_hcl(text: str) -> dict[str, Any]:
    """Read a part of HCL: blocks, of which one kind may stand there twice, strings, numbers and booleans."""
    root: dict[str, Any] = {}
    open_blocks = [root]
    for line in filter(None, map(str.strip, text.splitlines())):
        if start := re.fullmatch(r'(\w+)((?: "[\w-]+")*) \{', line):
            inner: dict[str, Any] = {}
            name = " ".join([start[1], *re.findall(r'"([^"]+)"', start[2])])
            open_blocks[-1].setdefault(name, []).append(inner)
            open_blocks.append(inner)
        elif setting := re.fullmatch(
            r'(\w+) += ("(?:[^"$%\\]|\$\$|%%|\\.)*"|\d+|true|false)', line
        ):
            value = json.loads(setting[2])
            if isinstance(value, str):
                value = value.replace("$${", "${").replace("%%{", "%{")
            assert setting[1] not in open_blocks[-1]
            open_blocks[-1][setting[1]] = value
        else:
            assert line == "}", f"not understood: {line}"
            open_blocks.pop()
    assert open_blocks == [root], "a block is not closed"
    return root


def stand_ins() -> dict[str, Any]:
    """Return modules with as much of the CDK as the templates use: the CDK itself needs Node.js."""

    class Stack:
        def __init__(self, scope: Any, construct_id: str) -> None:
            self.tables: list[dict[str, Any]] = []

    dynamodb = SimpleNamespace(
        Attribute=lambda *, name, type: (name, type),  # noqa: A006 - the CDK's
        AttributeType=SimpleNamespace(STRING="S", NUMBER="N", BINARY="B"),
        BillingMode=SimpleNamespace(PAY_PER_REQUEST="PAY_PER_REQUEST", PROVISIONED="PROVISIONED"),
        Table=lambda stack, construct_id, **settings: stack.tables.append(settings),
    )
    cdk = SimpleNamespace(Stack=Stack, aws_dynamodb=dynamodb)
    return {"aws_cdk": cdk, "aws_cdk.aws_dynamodb": dynamodb}
