# docker build -t lfo .            (--build-arg EXTRA=gpu for NVIDIA GPUs; --build-arg PIP_EXTRA_INDEX_URL=... names one
#                                   more package index, such as that of PyTorch's wheels without CUDA)
# docker run --rm lfo              (runs `make results`; `docker run --rm lfo make test` the tests; --gpus all for GPUs)
FROM python:3.11-slim-bookworm

# Debian's packages move with the image; every package that decides a result is pinned in pyproject.toml.
# The compiler is for kernels that Triton and vLLM build when they first run, bubblewrap for the shell world,
# Java for the public one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap default-jre-headless g++ make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home lfo \
    && install --directory --owner=lfo --group=lfo /app

USER lfo
WORKDIR /app
ARG EXTRA=cpu
ARG PIP_EXTRA_INDEX_URL
ENV EXTRA=${EXTRA} PYTHONUNBUFFERED=1

# The packages depend on these two files only: editing the code does not install them again.
COPY --chown=lfo:lfo pyproject.toml ./
COPY --chown=lfo:lfo lfo/__init__.py lfo/
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir -e ".[${EXTRA},dev,twc]"

COPY --chown=lfo:lfo . .
# Tells make that the environment is up to date.
RUN touch ".venv/.installed-${EXTRA}"

CMD ["make", "results"]
