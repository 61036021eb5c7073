"""The OpenAPI document, generated from routes, errors and structs, and rendered as a page."""
