"""Examples of every command, shown at the end of its help."""

import argparse

TYPE = "NVIDIA-H100-80GB-HBM3"
EXAMPLES: dict[str, tuple[str, ...]] = {
    "login": ("kant login https://kant.example.com --user erin",),
    "logout": ("kant logout",),
    "whoami": ("kant whoami",),
    "submit": (
        f"kant submit -G {TYPE} --gpus 8 --replicas 4 --time 12h -- python train.py",
        "kant submit -f job.yaml --priority 10 --dry-run",
        "kant submit --like train --name train-2 -e LR=0.0003",
    ),
    "submit-many": ("kant submit-many jobs.yaml --dry-run",),
    "templates": ("kant templates",),
    "templates save": ("kant templates save big-run --like train",),
    "templates delete": ("kant templates delete vision/big-run",),
    "jobs": (
        "kant jobs --user me --state pending",
        "kant jobs --reason FragmentedCapacity --min-gpus 64 --all",
    ),
    "show": ("kant show train",),
    "explain": ("kant explain train",),
    "eta": ("kant eta train",),
    "pods": ("kant pods train",),
    "events": ("kant events train", "kant events --kind losses --since 2h"),
    "pending": ("kant pending -t vision",),
    "loans": (f"kant loans -G {TYPE}",),
    "schedulers": ("kant schedulers",),
    "past": ("kant past 2h", "kant past 2030-01-24T00:00Z"),
    "logs": ("kant logs train --tail 100 --follow", "kant logs train --all --since 10m"),
    "wait": ("kant wait train --until running --timeout 10m",),
    "cancel": ("kant cancel train --preview", "kant cancel train train-2"),
    "hold": ("kant hold train",),
    "release": ("kant release train",),
    "change": (
        "kant change train --priority 20 --time-limit none",
        "kant change train --time 6h --preview",
    ),
    "scale": (
        "kant scale web 12",
        "kant scale web server=12 router=2",
        "kant scale web 12 --preview",
    ),
    "move": ("kant move train train-2 nightly",),
    "queues": ("kant queues --state held --state draining",),
    "queue show": ("kant queue show vision/nightly",),
    "queue hold": (
        "kant queue hold vision/nightly --preview",
        'kant queue hold vision/nightly --reason "Storage is down"',
    ),
    "queue release": ('kant queue release vision/nightly --reason "Storage is back"',),
    "queue drain": ('kant queue drain vision/nightly --reason "Moves to another tenant"',),
    "queue close": ('kant queue close vision/nightly --reason "Not used any more"',),
    "queue open": ('kant queue open vision/nightly --reason "Used again"',),
    "queue create": ("kant queue create vision/nightly --rank -1 --max-running 4",),
    "queue set": (
        f"kant queue set vision/nightly --weight 2 --max-gpus {TYPE}=16",
        "kant queue set vision/nightly --rank 5 --preview",
    ),
    "queue delete": ('kant queue delete vision/nightly --reason "Empty for a month"',),
    "queue global": (f"kant queue global demo -G {TYPE}",),
    "queue changes": ("kant queue changes -t vision",),
    "queue revert": ('kant queue revert 3f2a --reason "Too tight"',),
    "quotas": ("kant quotas -t vision", "kant quotas -o csv > quotas.csv"),
    "quota set": (
        f'kant quota set vision {TYPE} --guaranteed 64 --reason "New cameras" --preview',
    ),
    "quota changes": ("kant quota changes -t vision --limit 5",),
    "quota revert": ('kant quota revert 3f2a --reason "The project is over"',),
    "quota draft show": ("kant quota draft show",),
    "quota draft list": ("kant quota draft list",),
    "quota draft set": (
        f"kant quota draft set vision {TYPE} 64",
        f"kant quota draft set vision {TYPE} '64 shared borrow 16 lend any'",
    ),
    "quota draft drop": (f"kant quota draft drop vision {TYPE}",),
    "quota draft import": ("kant quota draft import quotas.csv",),
    "quota draft export": ("kant quota draft export > quotas.csv",),
    "quota draft move": ("kant quota draft move vision --below research",),
    "quota draft preview": ("kant quota draft preview",),
    "quota draft apply": (
        'kant quota draft apply --from 2h --until 2030-01-31T18:00Z --reason "Paper deadline"',
    ),
    "quota draft discard": ("kant quota draft discard",),
    "quota order show": ("kant quota order show 3f2a",),
    "quota order approve": ('kant quota order approve 3f2a --reason "Agreed"',),
    "quota order refuse": ('kant quota order refuse 3f2a --reason "Not this week"',),
    "quota order cancel": ('kant quota order cancel 3f2a --reason "Not needed"',),
    "quota order end": ('kant quota order end 3f2a --reason "Done early"',),
    "quota order keep": ('kant quota order keep 3f2a --reason "Works well"',),
    "quota orders": ("kant quota orders --all",),
    "clusters": ("kant clusters", "kant clusters demo"),
    "nodes": (f"kant nodes demo -G {TYPE}",),
    "cordon": ('kant cordon node-005 --reason "Fan is loud"',),
    "drain": (
        "kant drain node-005 --preview",
        'kant drain node-005 --deadline 2h --reason "New firmware"',
    ),
    "uncordon": ("kant uncordon node-005",),
    "defrag": (
        f"kant defrag --plan -n 2 -G {TYPE}",
        'kant defrag --apply --job train --at-most 5 --reason "Gang of 64"',
    ),
    "capacity": (f"kant capacity --add 4 -G {TYPE}",),
    "top": ("kant top", "kant top nodes --sort free --watch 5s"),
    "snapshot": ("kant snapshot demo -o demo.json.gz --anonymise",),
    "usage": ("kant usage --since 30d --by user,gpu_type --tenant vision",),
    "replay start": (
        "kant replay start --since 14d --policy queueing=backfill",
        f"kant replay start --nodes {TYPE}/8=+4 --quota vision/{TYPE}:guaranteed=64",
    ),
    "replay list": ("kant replay list --state done",),
    "replay show": ("kant replay show 3f2a --wait",),
    "replay cancel": ("kant replay cancel 3f2a",),
    "apply": ('kant apply -f organisation.yaml --reason "Quarter begins"',),
    "diff": ("kant diff -f organisation.yaml",),
    "export": ("kant export > organisation.yaml",),
    "token create": ("kant token create ci --scope read --scope submit -t vision --days 90",),
    "token list": ("kant token list",),
    "token revoke": ("kant token revoke 7",),
    "webhooks list": ("kant webhooks list",),
    "webhooks show": ("kant webhooks show on-call",),
    "webhooks create": (
        "kant webhooks create on-call https://hooks.example.com/kant -t vision -e job.failed",
    ),
    "webhooks set": ("kant webhooks set on-call --pending 7200",),
    "webhooks test": ("kant webhooks test on-call",),
    "webhooks rotate": ("kant webhooks rotate on-call",),
    "webhooks delete": ("kant webhooks delete on-call",),
    "webhooks deliveries": ("kant webhooks deliveries on-call --state failed",),
    "webhooks redeliver": ("kant webhooks redeliver on-call 0f3c2c1e",),
    "completion": ("kant completion bash > ~/.kant-completion",),
}


def add_examples(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> None:
    """Add the examples to the epilog of each command."""
    # argparse gives access to a parser's content only through members with an underscore.
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in below:
        for name, command in action.choices.items():
            add_examples(command, (*path, name))
    if parser.get_default("run"):
        known = EXAMPLES[" ".join(path)]
        told = "example:" if len(known) == 1 else "examples:"
        text = "\n  ".join((told, *known))
        parser.epilog = f"{parser.epilog}\n\n{text}" if parser.epilog else text
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
