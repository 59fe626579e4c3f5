"""CloudFront distributions and VPC origins as the service tells them, which the Terraform provider compares with what it asked for."""
from datetime import datetime, timezone

from moto.cloudfront import urls
from moto.cloudfront.models import DefaultCacheBehaviour, Origin, ViewerCertificate
from moto.cloudfront.responses import CloudFrontResponse
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.moto_api._internal import mock_random


class EntityNotFound(ServiceException):
    code = "EntityNotFound"


class InUse(ServiceException):
    code = "CannotDeleteEntityWhileInUse"


def install():
    """Patch moto, which fills in what a cache policy and CloudFront's own certificate leave out, and has no VPC origins."""
    behaviour, certificate, origin = DefaultCacheBehaviour.__init__, ViewerCertificate.__init__, Origin.__init__

    def behave(self, config):
        behaviour(self, config)
        if self.cache_policy_id:
            self.forwarded_values = None

    def certify(self, *args):
        certificate(self, *args)
        if self.cloud_front_default_certificate:
            self.ssl_support_method = None

    def originate(self, config):
        origin(self, config)
        if "VpcOriginConfig" in config:
            self.vpc_origin_config = config["VpcOriginConfig"]

    DefaultCacheBehaviour.__init__ = behave
    ViewerCertificate.__init__ = certify
    Origin.__init__ = originate
    vpc_origins()


def vpc_origins():
    """Origins inside a network, deployed at once."""
    for path in ("vpc-origin$", "vpc-origin/(?P<id>[^/]+)$"):
        urls.url_paths["{0}/2020-05-31/" + path] = CloudFrontResponse.dispatch

    def kept(response):
        return response.backend.__dict__.setdefault("kept_vpc_origins", {})

    def create(self):
        asked = self._get_param("CreateVpcOriginRequest") or self._get_params()
        now, name = datetime.now(timezone.utc), "vo_" + mock_random.get_random_string(22)
        made = {
            "Id": name,
            "Arn": f"arn:aws:cloudfront::{self.current_account}:vpcorigin/{name}",
            "AccountId": self.current_account,
            "Status": "Deployed",
            "CreatedTime": now,
            "LastModifiedTime": now,
            "VpcOriginEndpointConfig": asked["VpcOriginEndpointConfig"],
        }
        kept(self)[name] = made
        tags = (asked.get("Tags") or {}).get("Items") or []
        self.backend.tagger.tag_resource(made["Arn"], tags)
        return ActionResult({"VpcOrigin": made, "ETag": name, "Location": name})

    def get(self):
        name = self._get_param("Id")
        if name not in kept(self):
            raise EntityNotFound("The specified VPC origin does not exist.")
        return ActionResult({"VpcOrigin": kept(self)[name], "ETag": name})

    def delete(self):
        answer, name = get(self), self._get_param("Id")
        origins = [o for d in self.backend.distributions.values() for o in d.distribution_config.Origins["Items"]]
        if any(getattr(o, "vpc_origin_config", {}).get("VpcOriginId") == name for o in origins):
            raise InUse("The VPC origin is in use.")
        del kept(self)[name]
        return answer

    CloudFrontResponse.create_vpc_origin = create
    CloudFrontResponse.get_vpc_origin = get
    CloudFrontResponse.delete_vpc_origin = delete
