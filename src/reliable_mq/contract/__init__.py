"""What an application says to others about its messages: payload schemas, and an AsyncAPI document.

Receives the declarations of an application. Hands on JSON Schemas, what is incompatible between two
of them, and one document about all topics. It sends and receives nothing.
"""
