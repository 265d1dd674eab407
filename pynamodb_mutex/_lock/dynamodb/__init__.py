"""Everything that depends on DynamoDB, botocore or PynamoDB's connections: rows, requests, answers, connections."""
