"""Everything that knows how DynamoDB, botocore and PynamoDB work: rows, requests, answers, connections."""
