"""Secrets in command lines are hidden, and harmless words stay visible."""

import shlex

import pytest

from scheduling.job_fields.secrets import (
    HIDDEN,
    command_without_secrets,
    pod_set_without_secrets,
    without_secrets,
)

# Each line is a script; S3cr3tX and any word that contains it are secret.
SCRIPTS = r"""
train --password S3cr3tX --lr 1
train --password=S3cr3tX
train --db-password="S3cr3tX" -v
train --password 'my S3cr3tX word'
train -password S3cr3tX
train --hf_token S3cr3tX
train --auth-token=S3cr3tX
train --api-key S3cr3tX
train --wandb_key S3cr3tX
train --aws-secret-access-key S3cr3tX
train trainer.logger.api_key=S3cr3tX
mysql -u root -pS3cr3tX db
mysql -uroot -p'S3cr3tX' -e 'select 1'
/usr/bin/mysqldump -h db -pS3cr3tX | gzip
sudo mysql --password=S3cr3tX
sshpass -p S3cr3tX ssh me@host
sshpass -pS3cr3tX ssh me@host
PGPASSWORD=S3cr3tX psql -h db
A=1 PGPASSWORD="S3cr3tX" psql -h db
env PGPASSWORD=S3cr3tX psql
export TOKEN=S3cr3tX; python train.py
export TOKEN="S3cr3tX" && python train.py
export A=1 hf_token=S3cr3tX
WANDB_KEY=S3cr3tX python train.py
bash -c "export TOKEN=S3cr3tX; run"
bash -c 'mysql -pS3cr3tX'
bash -c "bash -c \"export TOKEN=S3cr3tX; run\""
bash -c "bash -c \"mysql -pS3cr3tX\""
bash -c "bash -c 'curl -u me:S3cr3tX https://h'"
sh -c "train --password \"my S3cr3tX\""
x=$(curl -u me:S3cr3tX https://host/x)
x=`mysql -pS3cr3tX`
curl https://host/a?token=S3cr3tX&b=1
curl 'https://host/a?b=1&access_token=S3cr3tX'
curl https://me:S3cr3tX@host/a
curl https://me:S3cr3tX@with@host/a
git clone https://x-access-token:S3cr3tX@github.com/a/b
git clone https://S3cr3tX0123@github.com/a/b
pip install -i https://__token__:S3cr3tX@pypi.host/simple x
psql postgresql://me:S3cr3tX@db/kant
run --redis redis://:S3cr3tX@cache:6379/0
run --redis redis://:S3/cr3tX-S3cr3tX@cache:6379/0
rsync me:S3cr3tX@host x
curl -u me:S3cr3tX https://host
curl -sSu me:S3cr3tX https://host
curl -ume:S3cr3tX https://host
curl --user me:S3cr3tX https://host
curl --user=me:S3cr3tX https://host
curl -U me:S3cr3tX -x proxy:3128 https://host
curl -H "Authorization: Bearer S3cr3tX" https://host
curl -H 'authorization: Token S3cr3tX' https://host
curl -H Authorization:S3cr3tX https://host
curl -H "Authorization: Digest a=b, S3cr3tX" https://host
curl -H "Cookie: a=b; session=S3cr3tX" https://host
curl -H "X-Api-Key: S3cr3tX" https://host
curl -H "PRIVATE-TOKEN: S3cr3tX" https://host
curl -d '{"user": "me", "password": "S3cr3tX"}' https://host
curl -d "{\"user\": \"me\", \"password\": \"a S3cr3tX\"}" https://host
curl -d 'user=me&password=S3cr3tX' https://host
http -a me:S3cr3tX host
wandb login S3cr3tX
wandb login --relogin S3cr3tX
wandb login --host https://wandb.host S3cr3tX
python -m wandb login S3cr3tX && run
vault login S3cr3tX
huggingface-cli login --token S3cr3tX
docker login -u me -p S3cr3tX registry
echo S3cr3tX | docker login -u me --password-stdin registry
echo me:S3cr3tX | chpasswd
passwd --stdin me <<< S3cr3tX
redis-cli -a S3cr3tX ping
aws configure set aws_secret_access_key S3cr3tX
mc alias set s3 https://host me S3cr3tX
setenv HF_TOKEN S3cr3tX
openssl enc -k S3cr3tX
openssl enc -passin pass:S3cr3tX
python -c 'import wandb; wandb.login(key="S3cr3tX")'
python -c "from huggingface_hub import login; login('S3cr3tX')"
python -c 'import os; os.environ["HF_TOKEN"] = "S3cr3tX"'
python -c 'os.putenv("HF_TOKEN", "S3cr3tX")'
python -c 'connect(host="h", password="S3cr3tX")'
java -Djavax.net.ssl.trustStorePassword=S3cr3tX -jar x
keytool -storepass S3cr3tX
docker run -e TOKEN=S3cr3tX image
curl 'https://b.host/x?X-Amz-Signature=S3cr3tX'
echo "${TOKEN:-S3cr3tX}"
run --dsn "host=db user=me password=S3cr3tX dbname=x"
curl https://hooks.slack.com/services/T0/B0/S3cr3tX
cat > key <<E\n-----BEGIN RSA PRIVATE KEY-----\nS3cr3tX\n-----END RSA PRIVATE KEY-----\nE
run x ghp_S3cr3tX0123456789abcdef
run x hf_S3cr3tX0123456789abcdef
run x sk-S3cr3tX-0123456789abcdef
run x sk-proj-S3cr3tX0123456789_abcdef
run x glpat-S3cr3tX0123456789
run x nvapi-S3cr3tX0123456789
run --hf.token S3cr3tX --other 1
run --config '{"hf": {"token": "S3cr3tX"}}'
"""
# No word of these is hidden.
PLAIN = r"""
python train.py --token-budget 512 --max-tokens=2048 --tokenizer llama --num_tokens 300B
python train.py --pad-token "<pad>" --eos_token </s> --special-tokens a,b --tokens-per-sample 512
python train.py tokenizer=llama model.tokenizer.path=/x data.max_tokens=8 tokens=8 token_type=bpe
TOKENIZERS_PARALLELISM=false python train.py --input-key prompt --label_key=answer
python -u train.py --key-frames 3 --primary-key id --passes 3 --n-pass 2 --bypass yes --keyword x
python -c 'sorted(x, key=len)'
python -c 'tokens = tokenizer(text, max_tokens=8)'
python -u train.py -p 8080 -a b -u c:d
torchrun --nproc_per_node 8 --rdzv-endpoint host:29500 train.py --author me --patience 3
docker run -p 80:80 registry.host/a/b:1.0@sha256:0123456789abcdef
git clone ssh://git@github.com/a/b && git clone git@github.com:a/b
curl -su "$WHO" https://host:8443/a?b=c@d
curl -H "Authorization: Bearer $TOKEN" https://host
train --password "$PASSWORD" --token ${TOKEN} --password-file /run/secrets/x
export TOKEN=$TOKEN; export PATH=/x:$PATH HOME=/root
wandb login; wandb online; hf download a/b
mysql -u root -h db kant -e 'select 1'
echo done | tee log; echo "$KEY" | docker login -u me --password-stdin registry
python train.py --lr 1e-4 --desc "the password of the user is not here"
sleep 3; tar -czf x.tgz x; rsync -a x host:/y; date +%H:%M:%S
python train.py --config configs/sk-small.yaml --run task-0123456789abcdef --use-auth false
s5cmd cp s3://bucket/a@b /x; nc -z host 80; ffmpeg -pass 1 x
"""


def lines(table):
    return [line.replace(r"\n", "\n") for line in table.strip().splitlines()]


@pytest.mark.parametrize("line", lines(SCRIPTS))
def test_no_secret_of_a_command_is_shown(line):
    told = without_secrets(line)
    assert HIDDEN in told
    assert "cr3tX" not in told, told
    assert told.split()[0] == line.split()[0] or "=" in line.split()[0]
    in_shell = command_without_secrets(["/bin/sh", "-c", line])
    assert in_shell == ["/bin/sh", "-c", told]
    deeper = command_without_secrets(["bash", "-c", f"set -e; bash -c {shlex.quote(line)}"])
    assert "cr3tX" not in str(deeper), deeper


@pytest.mark.parametrize("line", [x for x in lines(SCRIPTS) if not set("|&;<>()`$\n") & set(x)])
def test_no_secret_of_the_words_of_a_command_is_shown(line):
    words = shlex.split(line)
    told = command_without_secrets(words)
    assert "cr3tX" not in str(told), told
    assert len(told) == len(words)
    assert sum(a != b for a, b in zip(words, told, strict=True)) <= 3, told


@pytest.mark.parametrize("value", ["a&b", "a;b", "a,b", "a b", "a'b", 'a"b', "a|b", "(a)", "a=b"])
@pytest.mark.parametrize(
    "words", [["--password={}"], ["--password", "{}"], ["env", "TOKEN={}"], ["mysql", "-p{}"],
              ["curl", "-u", "me:{}"], ["wandb", "login", "{}"], ["-H", "Authorization: {}"]],
)  # fmt: skip
def test_a_word_is_hidden_to_its_end(words, value):
    told = command_without_secrets([word.format(f"Zz{value}zZ") for word in words])
    assert not any(each in str(told) for each in ("Zz", "zZ")), told


@pytest.mark.parametrize("line", lines(PLAIN))
def test_what_is_no_secret_stays(line):
    assert without_secrets(line) == line
    assert command_without_secrets(["sh", "-c", line]) == ["sh", "-c", line]
    if not set("|&;<>()`\n") & set(line):
        assert command_without_secrets(shlex.split(line)) == shlex.split(line)


def test_a_pod_set_has_secrets_in_all_that_it_runs():
    told = pod_set_without_secrets(
        {
            "name": "main",
            "count": 2,
            "env": {"A": "1", "TOKEN": "S3cr3tX"},
            "annotations": {"a/b": "https://me:S3cr3tX@host", "c": "d"},
            "command": ["run", "--password", "S3cr3tX"],
            "image": "me:S3cr3tX@host/image",
            "init_containers": [{"name": "i", "image": "x", "command": ["mysql", "-pS3cr3tX"]}],
            "sidecars": [{"name": "s", "image": "x", "command": ["sh", "-c", "TOKEN=S3cr3tX x"]}],
            "probes": {
                "startup": {"command": ["curl", "-u", "me:S3cr3tX", "localhost"]},
                "readiness": {"port": 80, "http_path": "/up?token=S3cr3tX"},
            },
        }
    )
    assert "S3cr3tX" not in str(told)
    assert told["env"]["A"] == "1"
    assert told["annotations"]["c"] == "d"
    assert (told["count"], told["probes"]["readiness"]["port"]) == (2, 80)
    assert told["command"] == ["run", "--password", HIDDEN]
