"""ElastiCache for the Terraform stack: serverless caches and replication groups of one node.

moto has no serverless caches and no parameter groups, deletes no subnet group, and never ends the deletion of a replication group. Here a cache is
the document that the service would describe, available at once. All serverless caches tell one address, that of the tests'
Redis; nodes tell the port that is theirs, where nothing needs to listen.
"""
from datetime import datetime, timezone

from moto.core.responses import ActionResult, EmptyResult
from moto.elasticache.exceptions import CacheClusterNotFound, CacheSubnetGroupNotFound, ElastiCacheException, ReplicationGroupNotFound
from moto.elasticache.models import ElastiCacheBackend
from moto.elasticache.responses import ElastiCacheResponse

MODIFIABLE = ("CacheUsageLimits", "DailySnapshotTime", "Description", "SecurityGroupIds", "SnapshotRetentionLimit", "UserGroupId")


class ServerlessCacheNotFound(ElastiCacheException):
    code = "ServerlessCacheNotFoundFault"

    def __init__(self, name):
        super().__init__(f"Serverless cache {name} not found.")


class CacheParameterGroupNotFound(ElastiCacheException):
    code = "CacheParameterGroupNotFound"

    def __init__(self, name):
        super().__init__(f"CacheParameterGroup not found: {name}")


NODE = {"Address": "127.0.0.1", "Port": 6379}


def install(endpoint):
    """Patch moto. Every serverless cache is found at the endpoint, an Address and a Port."""
    tags()
    subnet_groups()
    parameter_groups()
    serverless(endpoint)
    replication_groups(NODE)


def answers(name):
    """A decorator: the function answers the service's action of that name in moto."""

    def set_answer(function):
        setattr(ElastiCacheResponse, name, function)
        return function

    return set_answer


def kept(response, kind):
    """The documents of one kind by name, in the region and account that a request is for."""
    return response.elasticache_backend.__dict__.setdefault(f"kept_{kind}", {})


def found(documents, name, missing):
    """All documents, or the one of a name."""
    if not name:
        return list(documents.values())
    if name not in documents:
        raise missing(name)
    return [documents[name]]


def arn(response, kind, name):
    backend = response.elasticache_backend
    return f"arn:aws:elasticache:{backend.region_name}:{backend.account_id}:{kind}:{name}"


def given(values):
    return {k: v for k, v in values.items() if v is not None}


def tags():
    def list_tags(self, arn):
        return self.tagging_service.list_tags_for_resource(arn)

    def add(self, arn, tags):
        self.tagging_service.tag_resource(arn, tags)

    def remove(self, arn, tags):
        self.tagging_service.untag_resource_using_names(arn, tags)

    # moto's own take the names of few kinds only.
    ElastiCacheBackend.list_tags_for_resource = list_tags
    ElastiCacheBackend.add_tags_to_resource = add
    ElastiCacheBackend.remove_tags_from_resource = remove


def subnet_groups():
    @answers("delete_cache_subnet_group")
    def delete(self):
        name = self._get_param("CacheSubnetGroupName")
        if self.elasticache_backend.cache_subnet_groups.pop(name, None) is None:
            raise CacheSubnetGroupNotFound(name)
        return EmptyResult()


def parameter_groups():
    """Groups with the parameters that were set, of which nothing follows."""

    def named(self):
        return found(kept(self, "parameters"), self._get_param("CacheParameterGroupName"), CacheParameterGroupNotFound)

    @answers("create_cache_parameter_group")
    def create(self):
        asked = self._get_params()
        name = asked["CacheParameterGroupName"]
        group = given({
            "ARN": arn(self, "parametergroup", name),
            "CacheParameterGroupName": name,
            "CacheParameterGroupFamily": asked["CacheParameterGroupFamily"],
            "Description": asked.get("Description"),
            "IsGlobal": False,
        })
        kept(self, "parameters")[name] = {"group": group, "set": {}}
        self.elasticache_backend.tagging_service.tag_resource(group["ARN"], asked.get("Tags") or [])
        return ActionResult({"CacheParameterGroup": group})

    @answers("describe_cache_parameter_groups")
    def describe(self):
        return ActionResult({"CacheParameterGroups": [g["group"] for g in named(self)]})

    @answers("modify_cache_parameter_group")
    def modify(self):
        (group,) = named(self)
        for p in self._get_params().get("ParameterNameValues", []):
            group["set"][p["ParameterName"]] = p["ParameterValue"]
        return ActionResult({"CacheParameterGroupName": group["group"]["CacheParameterGroupName"]})

    @answers("describe_cache_parameters")
    def describe_parameters(self):
        (group,) = named(self)
        return ActionResult({"Parameters": [{"ParameterName": k, "ParameterValue": v, "Source": "user"} for k, v in group["set"].items()]})

    @answers("delete_cache_parameter_group")
    def delete(self):
        (group,) = named(self)
        del kept(self, "parameters")[group["group"]["CacheParameterGroupName"]]
        return EmptyResult()


def serverless(endpoint):
    @answers("create_serverless_cache")
    def create(self):
        asked = self._get_params()
        name, major = asked["ServerlessCacheName"], asked.get("MajorEngineVersion", "8")
        cache = given({
            "ServerlessCacheName": name,
            "ARN": arn(self, "serverlesscache", name),
            "Status": "available",
            "CreateTime": datetime.now(timezone.utc),
            "Engine": asked["Engine"],
            "MajorEngineVersion": major,
            "FullEngineVersion": f"{major}.0",
            "Description": asked.get("Description", " "),
            "CacheUsageLimits": asked.get("CacheUsageLimits"),
            "KmsKeyId": asked.get("KmsKeyId"),
            "SecurityGroupIds": asked.get("SecurityGroupIds", []),
            "SubnetIds": asked.get("SubnetIds", []),
            "UserGroupId": asked.get("UserGroupId"),
            "SnapshotRetentionLimit": int(asked.get("SnapshotRetentionLimit") or 0),
            "DailySnapshotTime": asked.get("DailySnapshotTime", "05:00"),
            "Endpoint": endpoint,
            "ReaderEndpoint": {**endpoint, "Port": endpoint["Port"] + 1},
        })
        kept(self, "serverless")[name] = cache
        self.elasticache_backend.tagging_service.tag_resource(cache["ARN"], asked.get("Tags") or [])
        return ActionResult({"ServerlessCache": cache})

    def named(self):
        return found(kept(self, "serverless"), self._get_param("ServerlessCacheName"), ServerlessCacheNotFound)

    @answers("describe_serverless_caches")
    def describe(self):
        return ActionResult({"ServerlessCaches": named(self)})

    @answers("modify_serverless_cache")
    def modify(self):
        asked, (cache,) = self._get_params(), named(self)
        cache.update({k: asked[k] for k in MODIFIABLE if asked.get(k) is not None})
        return ActionResult({"ServerlessCache": cache})

    @answers("delete_serverless_cache")
    def delete(self):
        (cache,) = named(self)
        del kept(self, "serverless")[cache["ServerlessCacheName"]]
        return ActionResult({"ServerlessCache": {**cache, "Status": "deleting"}})


def replication_groups(endpoint):
    @answers("create_replication_group")
    def create(self):
        asked = self._get_params()
        name = asked["ReplicationGroupId"]
        member = f"{name}-001"
        encrypted = str(asked.get("TransitEncryptionEnabled")).lower() == "true"
        shared = {
            "AtRestEncryptionEnabled": str(asked.get("AtRestEncryptionEnabled")).lower() == "true",
            "AuthTokenEnabled": False,
            "AutoMinorVersionUpgrade": True,
            "CacheNodeType": asked["CacheNodeType"],
            "Engine": asked["Engine"],
            "IpDiscovery": "ipv4",
            "NetworkType": "ipv4",
            "ReplicationGroupId": name,
            "SnapshotRetentionLimit": 0,
            "SnapshotWindow": "05:00-06:00",
            "TransitEncryptionEnabled": encrypted,
            "TransitEncryptionMode": "required" if encrypted else None,
        }
        node = {"CacheClusterId": member, "CacheNodeId": "0001", "ReadEndpoint": endpoint, "CurrentRole": "primary"}
        group = given({
            **shared,
            "ARN": arn(self, "replicationgroup", name),
            "AutomaticFailover": "disabled",
            "ClusterEnabled": False,
            "ClusterMode": "disabled",
            "DataTiering": "disabled",
            "Description": asked.get("ReplicationGroupDescription"),
            "MemberClusters": [member],
            "MultiAZ": "disabled",
            "NodeGroups": [
                {"NodeGroupId": "0001", "Status": "available", "PrimaryEndpoint": endpoint, "ReaderEndpoint": endpoint, "NodeGroupMembers": [node]}
            ],
            "Status": "available",
        })
        version = asked.get("EngineVersion", "8.0")
        kept(self, "member")[member] = given({
            **shared,
            "ARN": arn(self, "cluster", member),
            "CacheClusterId": member,
            "CacheClusterStatus": "available",
            "CacheNodes": [{"CacheNodeId": "0001", "CacheNodeStatus": "available", "Endpoint": endpoint, "ParameterGroupStatus": "in-sync"}],
            "CacheParameterGroup": {
                "CacheParameterGroupName": asked.get("CacheParameterGroupName") or f"default.{asked['Engine']}{version.split('.')[0]}",
                "ParameterApplyStatus": "in-sync",
            },
            "CacheSubnetGroupName": asked.get("CacheSubnetGroupName"),
            "EngineVersion": version if version.count(".") > 1 else f"{version}.0",
            "NumCacheNodes": 1,
            "PreferredAvailabilityZone": f"{self.region}a",
            "PreferredMaintenanceWindow": "sun:05:00-sun:06:00",
            "SecurityGroups": [{"SecurityGroupId": g, "Status": "active"} for g in asked.get("SecurityGroupIds", [])],
        })
        kept(self, "group")[name] = group
        for a in (group["ARN"], kept(self, "member")[member]["ARN"]):
            self.elasticache_backend.tagging_service.tag_resource(a, asked.get("Tags") or [])
        return ActionResult({"ReplicationGroup": group})

    def named(self):
        return found(kept(self, "group"), self._get_param("ReplicationGroupId"), ReplicationGroupNotFound)

    @answers("describe_replication_groups")
    def describe(self):
        return ActionResult({"ReplicationGroups": named(self)})

    @answers("delete_replication_group")
    def delete(self):
        (group,) = named(self)
        del kept(self, "group")[group["ReplicationGroupId"]]
        for member in group["MemberClusters"]:
            del kept(self, "member")[member]
        return ActionResult({"ReplicationGroup": {**group, "Status": "deleting"}})

    @answers("describe_cache_clusters")
    def describe_members(self):
        return ActionResult({"CacheClusters": found(kept(self, "member"), self._get_param("CacheClusterId"), CacheClusterNotFound)})
