"""CloudFront distributions as the service tells them, which the Terraform provider compares with what it asked for."""
from moto.cloudfront.models import DefaultCacheBehaviour, ViewerCertificate


def install():
    """Patch moto, which fills in what a cache policy and CloudFront's own certificate leave out."""
    behaviour, certificate = DefaultCacheBehaviour.__init__, ViewerCertificate.__init__

    def behave(self, config):
        behaviour(self, config)
        if self.cache_policy_id:
            self.forwarded_values = None

    def certify(self, *args):
        certificate(self, *args)
        if self.cloud_front_default_certificate:
            self.ssl_support_method = None

    DefaultCacheBehaviour.__init__ = behave
    ViewerCertificate.__init__ = certify
