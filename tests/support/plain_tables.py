"""Tables that are made by hand, not by a model."""

from __future__ import annotations


def create_plain_table(client, name, keys, **more):
    """Create a table.

    Args:
        client: A client of DynamoDB.
        name: The table's name.
        keys: The types of the hash key and of the range key, if it has one, by their names.
        more: What else CreateTable is to be given.
    """
    kinds = zip(keys, ("HASH", "RANGE"), strict=False)
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in kinds],
        AttributeDefinitions=[
            {"AttributeName": key, "AttributeType": kind} for key, kind in keys.items()
        ],
        **({"BillingMode": "PAY_PER_REQUEST"} | more),
    )
