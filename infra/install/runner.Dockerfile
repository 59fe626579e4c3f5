# The runner, without an engine unless BASE is an image that has one. image.sh makes the context; see `make image`.
ARG BASE=scratch
FROM ${BASE}
ARG TARGETARCH
COPY ca-certificates.crt /etc/ssl/certs/
COPY ${TARGETARCH}/runner/ /usr/local/bin/
COPY --chown=65532:65532 state/ /var/lib/reveille/
COPY tmp/ /tmp/
ENV REVEILLE_ENGINES_DIR=/opt/reveille/engines,/app REVEILLE_STATE_DIR=/var/lib/reveille
EXPOSE 8090
WORKDIR /var/lib/reveille
VOLUME /var/lib/reveille
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/runner"]
CMD []
