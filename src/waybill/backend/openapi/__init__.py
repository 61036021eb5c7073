"""The OpenAPI document of what is served: made of the routes, errors and structs, and rendered as a page."""
