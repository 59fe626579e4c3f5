# Gateway and warmer. image.sh makes the context; see `make image`.
FROM scratch
ARG TARGETARCH
COPY ca-certificates.crt /etc/ssl/certs/
COPY ${TARGETARCH}/gateway/ /usr/local/bin/
ENV REVEILLE_ADDR=0.0.0.0:8080
EXPOSE 8080
USER 65532:65532
HEALTHCHECK CMD ["/usr/local/bin/gateway", "health"]
ENTRYPOINT ["/usr/local/bin/gateway"]
CMD ["serve"]
