"""The manifest for Kubernetes: as the schemas of its versions have it, its parts fit each other, and what it starts is a server that
its probes find well.

SPDX-License-Identifier: Apache-2.0

usage: test_manifest.py BUILD_FOLDER [unittest arguments]

The schemas are fetched from PyPI into the build folder; where they cannot be, all is skipped.
"""
import copy
import http.client
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
from tool import pypi, tiny_model

SCHEMAS = "kubernetes-validate==1.37.0"
VERSIONS = "1.27", "1.32", "1.37"
DEPLOY = pathlib.Path(__file__).resolve().parent.parent.parent / "engine_plugin/deploy"
PATIENCE = 60
BUILD = yaml = kubernetes_validate = None


def documents():
    return list(yaml.safe_load_all((DEPLOY / "tandem.yaml").read_text()))


def of_kind(kind):
    return [one for one in documents() if one["kind"] == kind]


class Manifest(unittest.TestCase):
    def setUp(self):
        self.set, = of_kind("StatefulSet")
        self.pod = self.set["spec"]["template"]["spec"]
        self.container, = self.pod["containers"]

    def test_schemas(self):
        kinds = [one["kind"] for one in documents()]
        self.assertEqual(sorted(kinds), ["PodDisruptionBudget", "Service", "Service", "StatefulSet"])
        for version in VERSIONS:
            for one in documents():
                self.assertEqual(kubernetes_validate.validate(one, version, strict=True), version)

    def test_that_schemas_refuse(self):
        for path, value in ((("spec", "template", "spec", "terminationGracePeriodSecond"), 3), (("spec", "replicas"), "two"),
                            (("spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "port"), []),
                            (("spec", "template", "spec", "volumes", 0, "persistentVolumeClaim", "claimName"), 1)):
            broken = at = copy.deepcopy(self.set)
            for name in path[:-1]:
                at = at[name]
            at[path[-1]] = value
            with self.assertRaises(kubernetes_validate.ValidationError, msg=path):
                kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)

    def test_that_parts_fit(self):
        labels = self.set["spec"]["template"]["metadata"]["labels"]
        budget, = of_kind("PodDisruptionBudget")
        for one in (self.set, budget):
            self.assertEqual(one["spec"]["selector"]["matchLabels"], labels)
        services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service")}
        self.assertEqual(services[self.set["spec"]["serviceName"]]["clusterIP"], "None")
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        for spec in services.values():
            self.assertEqual(spec["selector"], labels)
            self.assertEqual([ports[port["targetPort"]] for port in spec["ports"]], [port["port"] for port in spec["ports"]])
        self.assertIn(f"--port={ports['http']}", self.container["args"])
        self.assertEqual({mount["name"] for mount in self.container["volumeMounts"]}, {one["name"] for one in self.pod["volumes"]})
        for option in ("--model", "--token-file"):
            path, = (a.partition("=")[2] for a in self.container["args"] if a.startswith(option + "="))
            self.assertTrue(any(path.startswith(mount["mountPath"] + "/") for mount in self.container["volumeMounts"]), path)
        resources = self.container["resources"]
        self.assertEqual(resources["requests"]["nvidia.com/gpu"], resources["limits"]["nvidia.com/gpu"])
        self.assertLess(int(self.container["lifecycle"]["preStop"]["exec"]["command"][1]), self.pod["terminationGracePeriodSeconds"])
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(self.container["securityContext"]["capabilities"], {"drop": ["ALL"]})

    def test_that_it_runs(self):
        """The container's command, with a port, a model and a token of this machine."""
        with tempfile.TemporaryDirectory(prefix="tandem-manifest-") as folder:
            model, token = pathlib.Path(folder) / "model.gguf", pathlib.Path(folder) / "token"
            tiny_model.write(model)
            token.write_text("s3cret\n")
            here = {"--model": f"--model={model}", "--token-file": f"--token-file={token}", "--port": "--port=0"}
            arguments = [here.get(a.partition("=")[0], a) for a in self.container["args"]]
            program, *words = self.container["command"]
            server = subprocess.Popen([BUILD / program, *words, *arguments, "--threads=1"], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, preexec_fn=limits.cpu(PATIENCE))
            try:
                line = server.stdout.readline()
                self.assertIn(" on http://0.0.0.0:", line)
                link = http.client.HTTPConnection("127.0.0.1", int(line.rsplit(":", 1)[1]), timeout=PATIENCE)

                def status(path, **headers):
                    link.request("GET", path, headers=headers)
                    answer = link.getresponse()
                    answer.read()
                    return answer.status
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    asked = self.container[probe]["httpGet"]
                    self.assertEqual((status(asked["path"]), asked["port"]), (200, "http"))
                self.assertEqual(status("/v1/models"), 401)
                self.assertEqual(status("/v1/models", Authorization="Bearer s3cret"), 200)
                link.close()
            finally:
                server.send_signal(signal.SIGTERM)
                self.assertEqual(server.communicate(timeout=PATIENCE)[1], "")
            self.assertEqual(server.returncode, 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_manifest.py BUILD_FOLDER [unittest arguments]")
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    schemas = pypi.folder_of(BUILD, SCHEMAS) if (BUILD / "tandem-serve").exists() else None
    if not schemas:
        print("test_manifest: the schemas could not be fetched, or tandem-serve was not built", file=sys.stderr)
        sys.exit(pypi.SKIPPED)
    sys.path.insert(1, str(schemas))
    import kubernetes_validate
    import yaml
    os.environ.pop("http_proxy", None)
    unittest.main()
