"""Builds the container image and runs it without a container engine, as tests do.

buildah interprets the Dockerfile, on a base that mmdebstrap makes (`build`). A container is a
process in namespaces of its own with the image as its root file system (`container`).
"""
