# The demo in a container:     docker build -t r2ccl . && docker run --rm r2ccl
# Four ranks in four of them:  docker compose up
# More in docs/docker.md.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

# Where compose.yaml's ranks find the job's secret.
RUN useradd --create-home r2ccl && install --directory --owner=r2ccl --mode=0700 /run/r2ccl

# What r2ccl depends on changes rarely, so it is a layer of its own; all of it comes as wheels, there is no compiler here.
WORKDIR /opt/r2ccl
COPY pyproject.toml ./
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        >/tmp/dependencies.txt && \
    pip install --no-cache-dir --only-binary=:all: --requirement /tmp/dependencies.txt && \
    rm /tmp/dependencies.txt

COPY README.md LICENSE ./
COPY r2ccl r2ccl
RUN pip install --no-cache-dir --no-deps .
COPY examples examples

USER r2ccl
WORKDIR /home/r2ccl
# As the container's first process Python would not hear SIGTERM.
STOPSIGNAL SIGINT
CMD ["r2ccl", "demo"]
