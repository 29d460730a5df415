"""Uses the client that openapi-python-client generates: client.py URL TOKEN."""

import sys

from flowline_api import AuthenticatedClient
from flowline_api.api.default import (
    get_runs,
    get_runs_run,
    get_runs_run_events,
    get_runs_run_result,
    post_flows,
    post_flows_flow_runs,
    post_work_claim,
    post_work_complete,
)
from flowline_api.models import DefinitionType0, GetRunsStatus, RunStatus, Start, WorkClaim, WorkComplete

url, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)

flow = DefinitionType0.from_dict({"flow": "python", "steps": {"write": {"worker": "letters"}}})
assert post_flows.sync(client=client, body=flow).flow == "python"
start = Start.from_dict({"input": {"name": "Ada"}, "labels": {"by": "test"}})
started = post_flows_flow_runs.sync("python", client=client, body=start)

(job,) = post_work_claim.sync(client=client, body=WorkClaim(worker="py-1", queues=["letters"])).jobs
assert (job.run_id, job.input_) == (started.run_id, {"name": "Ada"}), job
report = WorkComplete.from_dict({"outcomes": [{"lease": job.lease, "complete": {"result": "Dear Ada"}}]})
(reported,) = post_work_complete.sync(client=client, body=report).results
assert reported.applied, reported

outcome = get_runs_run_result.sync(started.run_id, client=client, wait="30s")
assert outcome.result == {"write": "Dear Ada"}, outcome
page = get_runs.sync(client=client, flow="python", status=GetRunsStatus.COMPLETED)
assert [run.run_id for run in page.items] == [started.run_id], page
run = get_runs_run.sync(started.run_id, client=client)
assert (run.status, run.labels["by"], run.completed_steps) == (RunStatus.COMPLETED, "test", 1), run
log = get_runs_run_events.sync(started.run_id, client=client)
types = [event.type_ for event in log.items]
assert types == ["flow.start", "step.started", "step.completed", "flow.completed"], types
