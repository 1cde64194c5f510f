"""Everything that must hold before anything starts, as one list from free to costly."""

from __future__ import annotations

from typing import Final

from milepost.supervisor.checks.check import Check, Checked, Note, Stage, Subject, run_checks
from milepost.supervisor.checks.code import prompts_have_room, user_code_loads
from milepost.supervisor.checks.engines import (
    adapters_are_used,
    adapters_fit,
    servers_are_told_once,
    servers_can_start,
)
from milepost.supervisor.checks.evaluation import (
    evaluation_has_its_engines,
    evaluation_is_possible,
)
from milepost.supervisor.checks.exporter import exporter_can_start, metrics_are_private
from milepost.supervisor.checks.files import (
    archive_has_room,
    held_out_is_apart,
    prompts_are_readable,
)
from milepost.supervisor.checks.http import (
    guests_door_is_free,
    http_door_is_safe,
    http_key_is_readable,
    http_ports_are_free,
)
from milepost.supervisor.checks.kept import functions_yield_the_same, prompts_are_noted
from milepost.supervisor.checks.learning import (
    batch_divides,
    loss_is_defined,
    optimizer_can_step,
    sampling_is_recomputable,
)
from milepost.supervisor.checks.ledger import ledger_fits
from milepost.supervisor.checks.limits import (
    devices_are_named,
    leases_outlast_episodes,
    system_limits_agree,
    tokens_fit,
    work_fits,
)
from milepost.supervisor.checks.machine import (
    Machine,
    folder_is_ready,
    machine_has_room,
    python_asserts,
    sockets_fit,
    trackers_are_installed,
    versions_are_tested,
)
from milepost.supervisor.checks.mailboxes import host_is_ours, place_exists, tcp_is_private
from milepost.supervisor.checks.model import checkpoint_is_complete, tensors_fit
from milepost.supervisor.checks.parts import parts_are_known
from milepost.supervisor.checks.ports import ports_are_apart
from milepost.supervisor.checks.resume import checkpoint_fits, resume_goes_on
from milepost.supervisor.checks.routes import model_has_routes, routes_find_their_way
from milepost.supervisor.checks.transports import (
    checksum_is_installed,
    delta_folders_can_be_written,
    transport_fits,
)
from milepost.supervisor.checks.wiring import (
    actors_fit,
    guests_find_a_door,
    model_is_given,
    names_are_free,
    over_sampling_is_settled,
    staleness_is_settled,
    topology_reads,
)

__all__ = ["CHECKS", "Check", "Checked", "Machine", "Note", "Stage", "Subject", "run_checks"]

READING: Final = Stage.READING
FILES: Final = Stage.FILES
CODE: Final = Stage.CODE

CHECKS: Final = (
    # the topology alone: no file, no process, no import of anybody's code
    Check("the topology parses and has no unknown key", READING, topology_reads),
    Check("every actor that the estimator needs is there, and no other", READING, actors_fit),
    Check("no two actors claim the same name", READING, names_are_free),
    Check("the starting checkpoint is named once", READING, model_is_given),
    Check(
        "sampling is the distribution that the trainer recomputes",
        READING,
        sampling_is_recomputable,
    ),
    Check("groups, batches, minibatches and ranks divide", READING, batch_divides),
    Check("the loss has the terms that are asked for", READING, loss_is_defined),
    Check(
        "routes are noted by the engine and replayed by the trainer", READING, routes_find_their_way
    ),
    Check("the optimizer's numbers and schedule make sense", READING, optimizer_can_step),
    Check("the limit on stale weights and its policy go together", READING, staleness_is_settled),
    Check("what is sampled beyond need has room and effect", READING, over_sampling_is_settled),
    Check("token limits fit the model, the episode and the micro-batch", READING, tokens_fit),
    Check("work in flight fits every actor that holds it", READING, work_fits),
    Check("leases are longer than any episode", READING, leases_outlast_episodes),
    Check("limits of the bus and deadlines agree", READING, system_limits_agree),
    Check("there is such a place to start processes", READING, place_exists),
    Check("metrics are given to those alone who hold the key", READING, metrics_are_private),
    Check("families, matchers and filters have names that exist", READING, parts_are_known),
    Check("devices have names that exist", READING, devices_are_named),
    Check("the HTTP door is open to agents and closed to others", READING, http_door_is_safe),
    Check("engines that are servers are told things once", READING, servers_are_told_once),
    Check("adapters have names, and sessions that may say them", READING, adapters_are_used),
    Check("weights can travel between this trainer and these engines", READING, transport_fits),
    Check(
        "the evaluator has prompts of its own and something to do", READING, evaluation_is_possible
    ),
    Check(
        "the evaluator's engines and policies have an effect", READING, evaluation_has_its_engines
    ),
    Check("the guests' door has an address", READING, guests_find_a_door),
    Check("no two doors want one port", READING, ports_are_apart),
    # what it names on this machine, and what this machine has
    Check("assertions are on", FILES, python_asserts),
    Check("installed versions are the tested ones", FILES, versions_are_tested),
    Check("the trackers that are asked for are installed", FILES, trackers_are_installed),
    Check("Prometheus finds its port and its key", FILES, exporter_can_start),
    Check("the run folder is new, or this is a resume", FILES, folder_is_ready),
    Check("a resumed run goes on as the run that it was", FILES, resume_goes_on),
    Check("a resumed run's ledger tells of what its checkpoint learned", FILES, ledger_fits),
    Check("the starting checkpoint is complete and of a known kind", FILES, checkpoint_is_complete),
    Check("its tensors are those that its config.json describes", FILES, tensors_fit),
    Check("the model has the routes that are to be replayed", FILES, model_has_routes),
    Check("the key of the HTTP door can be read", FILES, http_key_is_readable),
    Check("the HTTP door finds its ports", FILES, http_ports_are_free),
    Check("the guests' door finds its port", FILES, guests_door_is_free),
    Check("a resumed run noted which prompts it began with", FILES, prompts_are_noted),
    Check(
        "every line of the prompt files is a prompt, a resumed run's the same as before",
        FILES,
        prompts_are_readable,
    ),
    Check("no held-out prompt of a file is trained on", FILES, held_out_is_apart),
    Check("the interpreter of SGLang exists", FILES, servers_can_start),
    Check("adapters are those of the model", FILES, adapters_fit),
    Check("the checksum of weight versions is installed", FILES, checksum_is_installed),
    Check("weight versions find their folders", FILES, delta_folders_can_be_written),
    Check("the sockets of every actor have paths that fit", FILES, sockets_fit),
    Check("tcp mailboxes are encrypted and ask for a key of the run", FILES, tcp_is_private),
    Check("tcp mailboxes have an address of this machine", FILES, host_is_ours),
    Check("disk, memory, shared memory and open files suffice", FILES, machine_has_room),
    Check("the archive finds its room on disk", FILES, archive_has_room),
    # what is loaded in a process of its own: the user's code, and checkpoints that torch reads
    Check(
        "agent, prompts, reward, filters, devices and the chat template load and fit their calls",
        CODE,
        user_code_loads,
    ),
    Check("every prompt leaves room for a reply", CODE, prompts_have_room),
    Check(
        "functions yield the prompts that a resumed run began with", CODE, functions_yield_the_same
    ),
    Check("the checkpoint to go on from is whole and of this model", CODE, checkpoint_fits),
)
