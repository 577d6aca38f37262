"""Episodes over HTTP: any environment of ours behind a task server, and an environment whose episodes are played there.

`wire` is what both sides say to each other, `sessions` holds the open episodes, `app` is the server (the extra
`server`), `client` the `RemoteEnvironment`. Names no environment.
"""
