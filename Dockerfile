# The operator's image: one static binary; no shell, no libraries, no root. `make image` builds the binary and this, without a registry.
FROM scratch
COPY scpol /scpol
# By number, so that the kubelet can check `runAsNonRoot`.
USER 65532:65532
EXPOSE 8080 8443
ENTRYPOINT ["/scpol"]
CMD ["run"]
