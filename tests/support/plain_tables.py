"""Tables that are made by hand, not by a model."""


def create_plain_table(client, name, keys, **more):
    """Create a table; ``keys`` are the types of the hash key and of the range key, if it has one, by their names."""
    kinds = zip(keys, ("HASH", "RANGE"), strict=False)
    types = [{"AttributeName": key, "AttributeType": kind} for key, kind in keys.items()]
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in kinds],
        AttributeDefinitions=types,
        **({"BillingMode": "PAY_PER_REQUEST"} | more),
    )
