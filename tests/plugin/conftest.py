"""The folder that each test of the plugin works in."""

import pytest
from plugin_project import Project


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)
