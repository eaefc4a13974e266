"""Every process that is started: workers of this machine, and a DistDGL script on several hosts.

`supervisor` watches processes that belong together and `blame` says which one failed first. Both
serve `local`, the workers of a job (`jobs`: a training, a prediction, a profile; `worker` is what
they run), and `hosts`, the servers and trainers of a script: `cluster` says what runs where with
which environment, `emulated` and `remote` open a `connection` to the `agent` of a host, which
starts the processes there.
"""
